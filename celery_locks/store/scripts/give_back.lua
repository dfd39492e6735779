-- give_back: a user's item goes on sale again. May be repeated.
-- ARGV 1 name  2 user  3 token of this question (again.lua)
-- returns {the item}, or {''}: he had none

--include common
--include again

local before = answered(ARGV[3])
if before then return before end
local got = root .. 'g:' .. ARGV[1]
local item = redis.call('HGET', got, ARGV[2]) or ''
if item ~= '' then
  redis.call('HDEL', got, ARGV[2])
  redis.call('HDEL', root .. 'i:' .. ARGV[1], item)
  redis.call('SADD', root .. 's:' .. ARGV[1], item)
end
return answer(ARGV[3], {item})
