-- renew: extend many leases, each only if its token still holds the lock; never creates one.
-- KEYS after those below: h:<name> of each lease
-- ARGV token, ttl ms of each lease; and one more at the end, '1', if the first lease changes its ttl
-- returns p for a lost lease at position p (from 0), {p, note} if it was force-released
--         (force_release.lua), -1 - p for a holder that is asked to stop (stop.lua); an empty list if
--         every lease is renewed
--
-- A lapsed lease that nobody took is revived. A key of another type counts as lost.
-- Model: Renew in Lock.tla.

--keys records index notices
--include clock
--include names
--include holder_notices

-- Needs no memory: after a first write a script may continue under OOM, but not with ZADD as the first.
redis.call('ZREM', index, '')
local reply, index_update, renewed_at = {}, {'ZADD', index, 'GT'}, now()
local any_notice = redis.call('EXISTS', notices) == 1
for position = 0, #KEYS - 4 do
  local held, token, ttl = KEYS[position + 4], ARGV[2 * position + 1], ARGV[2 * position + 2]
  local changed = redis.pcall('ZADD', held, 'XX', 'CH', renewed_at + ttl, token)
  local notice = any_notice and notice_for(token)
  if changed == 1 or changed == 0 and redis.call('ZSCORE', held, token) then
    index_update[#index_update + 1] = renewed_at + ttl
    index_update[#index_update + 1] = name_of(held)
    if notice == '' then reply[#reply + 1] = -1 - position end
  else
    reply[#reply + 1] = notice and notice ~= '' and {position, notice} or position
  end
end
if #index_update > 3 then redis.call(unpack(index_update)) end
local record = #ARGV % 2 == 1 and redis.call('HGET', records, ARGV[1])
if record then
  -- Others compute from the ttl when the lease was last renewed, and whether a renewal is overdue.
  redis.call('HSET', records, ARGV[1], (record:gsub('^(%d+ %d+) %d+', '%1 ' .. ARGV[2])))
end
return reply
