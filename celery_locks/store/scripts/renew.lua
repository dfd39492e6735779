-- renew: push many leases forward, each only if its token still holds; never makes one anew.
-- ARGV name, token, ttl ms; name, token, ttl ms; ...
-- returns the positions (from 0) of the leases that are lost; an empty list is good news
--
-- A lapsed lease that nobody took is revived by this. A key of a foreign type counts as lost.

-- A write that needs no memory: after it the script may go on under OOM, where a first ZADD may not.
redis.call('DEL', root .. 'none')
local lost, marks = {}, {'ZADD', index, 'GT'}
for i = 1, #ARGV, 3 do
  local held, expiry = root .. 'h:' .. ARGV[i], now + ARGV[i + 2]
  local changed = redis.pcall('ZADD', held, 'XX', 'CH', expiry, ARGV[i + 1])
  if changed == 1 or changed == 0 and redis.call('ZSCORE', held, ARGV[i + 1]) then
    marks[#marks + 1] = expiry
    marks[#marks + 1] = ARGV[i]
  else
    lost[#lost + 1] = (i - 1) / 3
  end
end
if #marks > 3 then redis.call(unpack(marks)) end
return lost
