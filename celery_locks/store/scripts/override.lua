-- override: an operator pauses a lock or sets its limit, or ends that. Safe to repeat with one request id.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 'pause' or 'limit'  2 '1' to set it, '0' to end it  3 ms until it ends by itself, or 0
--      4 the limit, 0 for a pause  5 about, as in a marker (overrides.lua)
--      6 by whom, 7 why, 8 the name of the action: for the log
-- returns {1 if it was set before, else 0; the numbers of holders and of waiters}
--
-- The log entry (action_log.lua) is written in the same step. Nothing is logged if nothing was to end.
-- If the lock has more slots now, the next waiters get them.

--keys records index fence past usual log due held queue saved
--include clock
--include names
--include common
--include saved_replies
--include handover
--include action_log

local earlier = saved_reply(saved)
if earlier then return earlier end
local sets, ends = ARGV[2] == '1', tonumber(ARGV[3])
local was_set = 0
for _, marker in ipairs(read_markers(held)) do
  if marker:find('^~' .. ARGV[1]) then
    if not is_over(marker) then was_set = 1 end
    redis.call('ZREM', held, marker)
  end
end
if sets then
  ends = ends > 0 and now() + ends or 0
  add_marker(held, string.format('~%s %.0f %.0f %s %s', ARGV[1], ends, now(), ARGV[4], ARGV[5]))
end
if sets or was_set == 1 then
  log_action(ARGV[8], name_of(held), ARGV[6], ARGV[7], {}, {'limit', ARGV[4], 'until', string.format('%.0f', ends)})
end
restore_index(held, queue)
pass_on(held, queue)
local holders = redis.call('ZRANGEBYSCORE', held, '(' .. now(), '(+inf')
return save_reply(saved, {was_set, #holders, redis.call('ZCARD', queue)})
