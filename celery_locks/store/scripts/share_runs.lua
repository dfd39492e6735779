-- share_runs: read the last runs of a beat's entries; the holder of its lock adds those that are missing.
-- KEYS h:<name> b:<name>
--   b:<name>  hash  entry -> "<microseconds> <count> <fence>": its last run by the clock of the beat that
--             sent it, or the time when it was first seen; how often it ran; the fence of that beat
-- ARGV 1 token, '' to read only  2 microseconds: delete older records of entries that are not named here
--      3 entry, 4 record, ...
-- returns {1 if the token holds the lock, else 0, entry, record, ...}

--keys held runs
--include is_holder

local is_holder = ARGV[1] ~= '' and holds(ARGV[1])
if is_holder then
  local is_named = {}
  for i = 3, #ARGV, 2 do
    is_named[ARGV[i]] = true
    if not redis.call('HGET', runs, ARGV[i]) then redis.call('HSET', runs, ARGV[i], ARGV[i + 1]) end
  end
  local all = redis.call('HGETALL', runs)
  for i = 1, #all, 2 do
    local last = tonumber(all[i + 1]:match('^-?%d+'))
    if not is_named[all[i]] and (not last or last < tonumber(ARGV[2])) then
      redis.call('HDEL', runs, all[i])
    end
  end
end
local reply = redis.call('HGETALL', runs)
table.insert(reply, 1, is_holder and 1 or 0)
return reply
