-- Part of describe and count_holders: how many parked messages (park.lua) are in the queue of a lock.
--
-- A message is recognised by its token. The queue may have 100,000 waiters, so only the first and the last
-- 100 are read. Those between them count as parked if one of the two beside them is: processes wait in so
-- long a queue only beside messages, as each of them occupies a worker slot. So the number is exact up to
-- 200 waiters, and beyond that too unless processes are among those in the middle. A counter would be exact,
-- but each script that takes a waiter from a queue would have to keep it, and one that does not makes it
-- wrong for ever.

local ENDS = 100

-- Returns how many of the waiters behind the first 100 are parked.
local function count_parked_behind(queue)
  local last = redis.call('ZRANGE', queue, ENDS, ENDS)[1] and redis.call('ZRANGE', queue, -ENDS, -1)
  if not last then return 0 end
  local size = redis.call('ZCARD', queue)
  local between, parked = size - 2 * ENDS, 0
  for i = math.max(1, 1 - between), #last do
    if is_parked(last[i]) then parked = parked + 1 end
  end
  if between > 0 and (is_parked(last[1]) or is_parked(redis.call('ZRANGE', queue, ENDS - 1, ENDS - 1)[1])) then
    parked = parked + between
  end
  return parked
end
