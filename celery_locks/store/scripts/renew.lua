-- renew: push many leases forward, each only if its token still holds; never makes one anew.
-- ARGV name, token, ttl ms; name, token, ttl ms; ...
--      and one more at the end, '1', if the first one's ttl is another than before
-- returns p for the lease at position p (from 0) that is lost, {p, note} if it was taken by force
--         (force_release.lua), -1 - p for one whose holder is asked to stop (stop.lua); an empty list
--         is good news
--
-- A lapsed lease that nobody took is revived by this. A key of a foreign type counts as lost.

--include common

-- A write that needs no memory: after it the script may go on under OOM, where a first ZADD may not.
redis.call('DEL', root .. 'none')
local news, marks = {}, {'ZADD', index, 'GT'}
local stops = root .. 'stops'
local moment = now()
local any_stop = redis.call('EXISTS', stops) == 1
for i = 1, #ARGV - 2, 3 do
  local held, expiry = root .. 'h:' .. ARGV[i], moment + ARGV[i + 2]
  local changed = redis.pcall('ZADD', held, 'XX', 'CH', expiry, ARGV[i + 1])
  if changed == 1 or changed == 0 and redis.call('ZSCORE', held, ARGV[i + 1]) then
    marks[#marks + 1] = expiry
    marks[#marks + 1] = ARGV[i]
    if any_stop and redis.call('HEXISTS', stops, ARGV[i + 1]) == 1 then
      news[#news + 1] = -1 - (i - 1) / 3
    end
  else
    local note = redis.pcall('GET', root .. 'r:' .. ARGV[i + 1])
    local lost = (i - 1) / 3
    news[#news + 1] = type(note) == 'string' and {lost, note} or lost
  end
end
if #marks > 3 then redis.call(unpack(marks)) end
local record = #ARGV % 3 == 1 and redis.call('HGET', records, ARGV[2])
if record then
  -- By it others reckon when it was last renewed, and whether the next time is overdue.
  redis.call('HSET', records, ARGV[2], (record:gsub('^(%d+ %d+) %d+', '%1 ' .. ARGV[3])))
end
return news
