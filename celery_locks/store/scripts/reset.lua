-- reset: delete a mark (marks.lua), so that the work may run, or the key be claimed, again.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 name  2 by whom, '' to leave it out of the log  3 why
-- returns {1} if there was a mark, else {0}
--
-- The log entry is written first: no action without its entry.

--keys completed log mark saved
--include saved_replies
--include action_log

local earlier = saved_reply(saved)
if earlier then return earlier end
if ARGV[2] ~= '' and redis.call('EXISTS', mark) == 1 then
  log_action('reset', ARGV[1], ARGV[2], ARGV[3], {})
end
redis.call('ZREM', completed, ARGV[1]) -- a claim is not in it
return save_reply(saved, {redis.call('DEL', mark)})
