-- take_batch: the holder of the lock takes a batch of messages; those of a lost worker come first.
-- ARGV 1 name  2 buffer  3 user  4 token  5 how many
-- returns {1, messages...}, the same again in a repeated call; {0}: the token does not hold the lock

--include common
--include batches

local name, token = ARGV[1], ARGV[4]
local in_flight = root .. 'f:' .. name
if not is_held(name, token) then return {0} end
local batch_token = redis.call('LINDEX', in_flight, 0)
if batch_token and batch_token ~= token then put_back(name) end
if batch_token ~= token then
  local batch = redis.call('LPOP', root .. 'l:' .. name, ARGV[5])
  if not batch then return {1} end
  redis.call('RPUSH', in_flight, token)
  for i = 1, #batch, 1000 do
    redis.call('RPUSH', in_flight, unpack(batch, i, math.min(i + 999, #batch)))
  end
  count_messages(ARGV[2], ARGV[3], name)
end
local reply = redis.call('LRANGE', in_flight, 0, -1)
reply[1] = 1
return reply
