-- The guard: a server that lost its data must not grant what a holder from before the loss still trusts.
--   epoch  string  µs at which the data of this shard began, by this server's clock; negative if there was
--                  data before, which is lost
--
-- A caller sends the latest number, fence or ticket, that this server gave it. The data was lost if that
-- number is later than the last one here (the last writes are missing, or all), or earlier than the epoch
-- (somebody who knew nothing began it). Every lease from before has ended a ttl after the epoch. Until then
-- no lock is granted, but for a lease that its holder asserts again (reassert.lua).
-- A caller without a number begins an epoch without a guard: for it, an empty server is a new one.
-- Model: Guard.tla.

local GUARD_ABOUT = '{"by":"","why":"the lock server lost its data, and a holder from before may still run"}'

-- Let the next number be above this one: a holder from before the loss has it.
local function raise_fence(number)
  local current = redis.call('GET', fence) or '0'
  if tonumber(current:match('^%d+')) < number then
    redis.call('SET', fence, string.format('%.0f', number) .. (current:match(' p$') or ''))
  end
end

-- Note a loss that the number `known` shows, 0 for none. Returns the µs until which a lock with this ttl in
-- ms is guarded, or nil; and the epoch.
local function guarded_until(known, ttl)
  local began = tonumber(redis.call('GET', epoch) or 0)
  local last = last_number or tonumber((redis.call('GET', fence) or '0'):match('^%d+'))
  if began > 0 and known <= last and (known == 0 or known >= began) then return nil, began end
  now()
  local before = began
  if known > last then
    began = -micros
    raise_fence(known)
    last_number = known
  elseif began >= 0 and known > 0 then
    began = -(began > 0 and began or micros)
  elseif began == 0 then
    began = micros
  end
  if began ~= before then redis.call('SET', epoch, string.format('%.0f', began)) end
  local ends = -began + ttl * 1000
  return began < 0 and ends > micros and ends or nil, began
end
