-- locate: what is known of some tokens, for those who know the token and not the name.
-- ARGV tokens
-- returns one record each; 1: taken by force (force_release.lua); or nil: not acquired yet, or gone

--include common

local found = redis.call('HMGET', records, unpack(ARGV))
for i, token in ipairs(ARGV) do
  if not found[i] and redis.call('EXISTS', root .. 'r:' .. token) == 1 then found[i] = 1 end
end
return found
