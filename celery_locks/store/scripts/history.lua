-- history: a page of what operators did, or of past holds, the latest first.
-- ARGV 1 where to begin: '+', or '(' and the last id that was read  2 how many  3 'log' or 'past'
-- returns [id, {field, value, ...}]...; the id begins with the moment in ms

--include common

return redis.call('XREVRANGE', root .. ARGV[3], ARGV[1], '-', 'COUNT', ARGV[2])
