-- locate: find the records of tokens, for callers that know the token and not the name.
-- ARGV tokens
-- returns for each token its record; 1: force-released (force_release.lua); nil: not acquired yet, or gone

--keys records notices
--include clock
--include notices

local found = redis.call('HMGET', records, unpack(ARGV))
for i, token in ipairs(ARGV) do
  if not found[i] and (notice_for(token) or '') ~= '' then found[i] = 1 end
end
return found
