-- reset: delete a mark (marks.lua), so that the work may run, or the key be claimed, again.
-- ARGV 1 mark  2 request id (saved_replies.lua)  3 name, for the log
--      4 by whom, '' to leave it out of the log  5 why
-- returns {1} if there was a mark, else {0}
--
-- The log entry is written first: no action without its entry.

--include common
--include saved_replies
--include action_log

local saved = saved_reply(ARGV[2])
if saved then return saved end
local mark = root .. ARGV[1]
if ARGV[4] ~= '' and redis.call('EXISTS', mark) == 1 then
  log_action('reset', ARGV[3], ARGV[4], ARGV[5], {})
end
if ARGV[1]:sub(1, 2) == 'o:' then redis.call('ZREM', root .. 'done', ARGV[1]:sub(3)) end
return save_reply(ARGV[2], {redis.call('DEL', mark)})
