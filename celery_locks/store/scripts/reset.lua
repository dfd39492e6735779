-- reset: forget a mark (marks.lua), so that the work may be done, or the key claimed, again.
-- ARGV 1 mark  2 token of this question (again.lua)
--      3 by whom, '' to leave it out of the log  4 why  5 the key
-- returns {1} if there was one, else {0}

--include common
--include again
--include log

local before = answered(ARGV[2])
if before then return before end
if ARGV[1]:sub(1, 2) == 'o:' then redis.call('ZREM', root .. 'done', ARGV[1]:sub(3)) end
local found = redis.call('DEL', root .. ARGV[1])
if found == 1 and ARGV[3] ~= '' then record_act('reset', ARGV[5], ARGV[3], ARGV[4], {}) end
return answer(ARGV[2], {found})
