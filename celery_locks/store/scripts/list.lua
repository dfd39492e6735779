-- list: a page of the locks in the index; a lock that is held during the whole walk is on some page.
-- ARGV 1 cursor, '0' to start  2 about how many  3 '1': lapsed holders instead of live ones
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
