-- take_batch: the holder of the lock takes messages in flight, those of a lost worker first among them.
-- ARGV 1 name  2 buffer  3 user  4 token  5 how many
-- returns {1, messages...}, the same again if it has them already; {0}: the token holds no more

--include common
--include batches

local name, token = ARGV[1], ARGV[4]
local flying = root .. 'f:' .. name
if not is_held(name, token) then return {0} end
local owner = redis.call('LINDEX', flying, 0)
if owner and owner ~= token then put_back(name) end
if owner ~= token then
  local batch = redis.call('LPOP', root .. 'l:' .. name, ARGV[5])
  if not batch then return {1} end
  redis.call('RPUSH', flying, token)
  for i = 1, #batch, 1000 do
    redis.call('RPUSH', flying, unpack(batch, i, math.min(i + 999, #batch)))
  end
  count_messages(ARGV[2], ARGV[3], name)
end
local reply = redis.call('LRANGE', flying, 0, -1)
reply[1] = 1
return reply
