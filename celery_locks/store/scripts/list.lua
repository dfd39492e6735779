-- list: a page of locks, walking the index; every lock that is held throughout the walk is met.
-- ARGV 1 cursor, '0' to begin  2 about how many  3 '1': holders that lapsed and are not yet forgotten,
--      instead of those that hold
-- returns {next cursor ('0' at the end), now, describe(name)...}

--include common
--include describe

local page = redis.call('ZSCAN', index, ARGV[1], 'COUNT', ARGV[2])
local reply = {page[1], now()}
for i = 1, #page[2], 2 do
  if ARGV[3] == '1' or tonumber(page[2][i + 1]) > now() then
    local lock = ARGV[3] == '1' and describe_lapsed(page[2][i]) or describe(page[2][i])
    if #lock > 2 then reply[#reply + 1] = lock end
  end
end
return reply
