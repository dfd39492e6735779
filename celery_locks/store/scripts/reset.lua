-- reset: forget a mark (marks.lua), so that the work may be done, or the key claimed, again.
-- ARGV 1 mark  2 token of this question (again.lua)  3 name, for the log
--      4 by whom, '' to leave it out of the log  5 why
-- returns {1} if there was one, else {0}
--
-- Logged before it is done: no act without its entry.

--include common
--include again
--include log

local before = answered(ARGV[2])
if before then return before end
local mark = root .. ARGV[1]
if ARGV[4] ~= '' and redis.call('EXISTS', mark) == 1 then
  record_act('reset', ARGV[3], ARGV[4], ARGV[5], {})
end
if ARGV[1]:sub(1, 2) == 'o:' then redis.call('ZREM', root .. 'done', ARGV[1]:sub(3)) end
return answer(ARGV[2], {redis.call('DEL', mark)})
