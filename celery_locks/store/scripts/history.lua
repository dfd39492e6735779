-- history: a page of what operators did, the latest first.
-- ARGV 1 where to begin: '+', or '(' and the last id that was read  2 how many
-- returns [id, {field, value, ...}]...; the id begins with the moment in ms

return redis.call('XREVRANGE', root .. 'log', ARGV[1], '-', 'COUNT', ARGV[2])
