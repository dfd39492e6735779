-- reassert: give leases back to their holders after the server lost its data (lib/guard.lua). May be repeated.
-- KEYS after those below: h:<name> of each lease
-- ARGV token, fence, record without fence and since of each lease
-- returns the positions, from 0, of the leases that stay lost
--
-- A lease keeps its token and its fence. It comes back if it was granted before the loss, while its lock is
-- guarded, and if there is room beside the other holders. A reservation gives way: nothing runs by it, and
-- its message acquires the lock like any other.
-- Model: Reassert in Guard.tla.

--keys records index fence past usual due epoch
--include clock
--include names
--include common
--include guard
--include handover

-- A reservation, or a slot that is reserved for a woken message (park.lua).
local function is_idle(holder) return is_reservation(holder) or is_parked(holder) end

local function has_room(held, limit)
  local operator_limit = read_overrides(held, read_markers(held))
  return fits(limit, count_holders(held), is_shared(held), operator_limit)
end

local function make_room(held, limit)
  drop(held, redis.call('ZRANGEBYSCORE', held, '-inf', now(), 'WITHSCORES'))
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', '(+inf')) do
    if has_room(held, limit) then return true end
    if is_idle(holder) then
      redis.call('ZREM', held, holder)
      redis.call('HDEL', records, holder)
    end
  end
  return has_room(held, limit)
end

local lost = {}
for position = 0, #KEYS - 8 do
  local held, token = KEYS[position + 8], ARGV[3 * position + 1]
  local number, tail = tonumber(ARGV[3 * position + 2]), ARGV[3 * position + 3]
  local ttl, limit = tail:match('^(%d+) (%d+)')
  local ends, began = guarded_until(number, ttl)
  -- pcall: a value of another type under our key is not ours to change.
  local expiry = redis.pcall('ZSCORE', held, token)
  local may_return = ends and number < -began and type(expiry) ~= 'table'
  if may_return and (expiry or make_room(held, tonumber(limit))) then
    raise_fence(number)
    grant(held, token, now() + ttl, tail, number, math.floor(number / 1000))
  else
    lost[#lost + 1] = position
  end
end
return lost
