-- drain_list: take messages off the head of a user's own list. The same memo key gets the same messages.
-- KEYS the list, and the memo in the same slot  ARGV 1 how many  2 ms for which the memo is kept
-- returns the messages in order

--keys list memo

local count = tonumber(ARGV[1])
local batch = redis.call('LRANGE', memo, 0, -1)
if #batch > 0 then return batch end
if redis.call('LLEN', list) <= count then
  -- The whole list becomes the memo; the next push starts a new list.
  if redis.call('EXISTS', list) == 0 then return {} end
  redis.call('RENAME', list, memo)
  batch = redis.call('LRANGE', memo, 0, -1)
else
  batch = redis.call('LPOP', list, count)
  for i = 1, #batch, 1000 do
    redis.call('RPUSH', memo, unpack(batch, i, math.min(i + 999, #batch)))
  end
end
redis.call('PEXPIRE', memo, ARGV[2])
return batch
