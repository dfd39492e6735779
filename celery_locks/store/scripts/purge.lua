-- purge: an operator removes parked messages (park.lua) from the queue of a lock: one, or a batch of them.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 token, or '' for all  2 the ticket at which to begin, '' for the first
--      3 the last ticket, '' for that of the last waiter now: so that the calls for all batches end, while
--      others are parked
--      4 how many waiters to read at most  5 by whom  6 why
-- returns {the ticket at which the next batch begins (groups share tickets, park.lua), '' if this is the last; the last ticket,
--         [token, ticket, record, message]...}: those that were removed
--
-- The log entry (action_log.lua) is written in the same step: one for a batch, with its size. A message
-- that was woken is not parked any more. Safe to repeat with one request id.

--keys records index fence past usual log due parked held queue saved
--include clock
--include names
--include common
--include saved_replies
--include handover
--include action_log

-- A batch ends early if its messages are this large together, in bytes.
local MAX_READ = 1000000

local earlier = saved_reply(saved)
if earlier then return earlier end
local last = ARGV[3] ~= '' and ARGV[3] or redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2] or '0'
local waiters
if ARGV[1] ~= '' then
  local ticket = redis.call('ZSCORE', queue, ARGV[1])
  waiters = ticket and {ARGV[1], ticket} or {}
else
  local first = ARGV[2] ~= '' and ARGV[2] or '-inf'
  waiters = redis.call('ZRANGEBYSCORE', queue, first, last, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
end

local reply, entry, read, done = {'', last}, {now()}, 0, 0
for i = 1, #waiters, 2 do
  local token, ticket = waiters[i], waiters[i + 1]
  if read >= MAX_READ then break end
  if is_parked(token) then
    local message = (redis.call('HGET', parked, token) or ''):match('^%S+ %d+ (.*)$') or ''
    local record = redis.call('HGET', records, token) or ''
    read = read + #message
    for _, value in ipairs({token, ticket, record}) do entry[#entry + 1] = value end
    for _, value in ipairs({token, ticket, record, message}) do reply[#reply + 1] = value end
  end
  done = done + 2
end
local is_last = ARGV[1] ~= '' or done == #waiters and #waiters < 2 * ARGV[4]
if not is_last then reply[1] = waiters[done] end
local count = (#entry - 1) / 3
if count == 0 then return reply end
log_action('purge', name_of(held), ARGV[5], ARGV[6], entry, {'count', string.format('%.0f', count)})
for i = 2, #entry, 3 do
  redis.call('ZREM', queue, entry[i])
  redis.call('HDEL', parked, entry[i])
  redis.call('HDEL', records, entry[i])
end
pass_on(held, queue) -- the next one may need fewer slots, or nobody may be left
return save_reply(saved, reply)
