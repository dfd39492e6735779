-- renew: extend many leases, each only if its token still holds the lock; never creates one.
-- ARGV name, token, ttl ms; name, token, ttl ms; ...
--      and one more at the end, '1', if the first lease changes its ttl
-- returns p for a lost lease at position p (from 0), {p, note} if it was force-released
--         (force_release.lua), -1 - p for a holder that is asked to stop (stop.lua); an empty list if
--         every lease is renewed
--
-- A lapsed lease that nobody took is revived. A key of another type counts as lost.

--include common

-- Needs no memory: after a first write a script may continue under OOM, but not with ZADD as the first.
redis.call('DEL', root .. 'none')
local reply, index_update = {}, {'ZADD', index, 'GT'}
local stops = root .. 'stops'
local renewed_at = now()
local any_stop = redis.call('EXISTS', stops) == 1
for i = 1, #ARGV - 2, 3 do
  local held, expiry = root .. 'h:' .. ARGV[i], renewed_at + ARGV[i + 2]
  local changed = redis.pcall('ZADD', held, 'XX', 'CH', expiry, ARGV[i + 1])
  if changed == 1 or changed == 0 and redis.call('ZSCORE', held, ARGV[i + 1]) then
    index_update[#index_update + 1] = expiry
    index_update[#index_update + 1] = ARGV[i]
    if any_stop and redis.call('HEXISTS', stops, ARGV[i + 1]) == 1 then
      reply[#reply + 1] = -1 - (i - 1) / 3
    end
  else
    local note = redis.pcall('GET', root .. 'r:' .. ARGV[i + 1])
    local position = (i - 1) / 3
    reply[#reply + 1] = type(note) == 'string' and {position, note} or position
  end
end
if #index_update > 3 then redis.call(unpack(index_update)) end
local record = #ARGV % 3 == 1 and redis.call('HGET', records, ARGV[2])
if record then
  -- Others compute from the ttl when the lease was last renewed, and whether a renewal is overdue.
  redis.call('HSET', records, ARGV[2], (record:gsub('^(%d+ %d+) %d+', '%1 ' .. ARGV[3])))
end
return reply
