-- reset: forget a mark (marks.lua), so that the work may be done, or the key claimed, again.
-- ARGV 1 mark
-- returns 1 if there was one

--include common

if ARGV[1]:sub(1, 2) == 'o:' then redis.call('ZREM', root .. 'done', ARGV[1]:sub(3)) end
return redis.call('DEL', root .. ARGV[1])
