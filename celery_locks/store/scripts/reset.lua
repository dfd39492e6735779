-- reset: forget a mark (marks.lua), so that the work may be done, or the key claimed, again.
-- ARGV 1 mark  2 token of this question (again.lua)
-- returns {1} if there was one, else {0}

--include common
--include again

local before = answered(ARGV[2])
if before then return before end
if ARGV[1]:sub(1, 2) == 'o:' then redis.call('ZREM', root .. 'done', ARGV[1]:sub(3)) end
return answer(ARGV[2], {redis.call('DEL', root .. ARGV[1])})
