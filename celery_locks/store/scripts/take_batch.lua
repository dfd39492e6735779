-- take_batch: the holder of the lock takes a batch of messages; those of a lost worker come first.
-- KEYS h:<name>, and those of batches.lua
-- ARGV 1 user  2 token  3 how many
-- returns {1, messages...}, the same again in a repeated call; {0}: the token does not hold the lock

--keys held waiting in_flight users
--include batches
--include holds

local token = ARGV[2]
if not holds(token) then return {0} end
local batch_token = redis.call('LINDEX', in_flight, 0)
if batch_token and batch_token ~= token then put_back() end
if batch_token ~= token then
  local batch = redis.call('LPOP', waiting, ARGV[3])
  if not batch then return {1} end
  redis.call('RPUSH', in_flight, token)
  for i = 1, #batch, 1000 do
    redis.call('RPUSH', in_flight, unpack(batch, i, math.min(i + 999, #batch)))
  end
  count_messages(ARGV[1])
end
local reply = redis.call('LRANGE', in_flight, 0, -1)
reply[1] = 1
return reply
