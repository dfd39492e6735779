-- force_release: an operator takes the lock from one holder, or from all of them.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 token, or '' for every holder  2 by whom  3 why
-- returns {now, [token, expiry, record]...}: the holders that lost it; their next renewal tells them
--
-- The log entry (action_log.lua) is written in the same step: no action without its entry.
-- The next holder has a higher fence than those that lost the lock. A pause and a limit stay.
-- Model: ForceRelease in Lock.tla.

--keys records index fence past usual notices log due held queue saved
--include clock
--include names
--include common
--include saved_replies
--include handover
--include action_log
--include holder_notices

local earlier = saved_reply(saved)
if earlier then return earlier end
local reply, removed = {now()}, {}
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if not is_marker(holders[i]) and (ARGV[1] == '' or ARGV[1] == holders[i]) then
    removed[#removed + 1] = holders[i]
    if tonumber(holders[i + 1]) > now() then
      reply[#reply + 1] = holders[i]
      reply[#reply + 1] = holders[i + 1]
      reply[#reply + 1] = redis.call('HGET', records, holders[i]) or ''
    else
      note_past('lapsed', held, holders[i], holders[i + 1], LAPSED)
    end
  end
end
if #reply > 1 then log_action('force_release', name_of(held), ARGV[2], ARGV[3], reply) end
for i = 2, #reply, 3 do
  if not reply[i]:find('^[-qk]') then -- nobody renews these
    local ttl = tonumber(reply[i + 2]:match('^%d+ %d+ (%d+)') or 0)
    leave_notice(reply[i], #ARGV[2] .. ' ' .. ARGV[2] .. ARGV[3], math.max(2 * ttl, 60000))
  end
end
for _, token in ipairs(removed) do
  redis.call('ZREM', held, token)
  redis.call('HDEL', records, token)
end
pass_on(held, queue)
return save_reply(saved, reply)
