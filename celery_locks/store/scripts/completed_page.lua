-- completed_page: a page of the work that is marked as completed (marks.lua).
-- ARGV 1 cursor, '0' to start  2 about how many
-- returns {next cursor ('0' at the end), now, [name, ms left, first 120 bytes of the mark, its size]...}

--include common

local page = redis.call('ZSCAN', root .. 'done', ARGV[1], 'COUNT', ARGV[2])
local reply = {page[1], now()}
for i = 1, #page[2], 2 do
  local key = root .. 'o:' .. page[2][i]
  local left = redis.call('PTTL', key)
  if left >= 0 then
    reply[#reply + 1] = page[2][i]
    reply[#reply + 1] = left
    reply[#reply + 1] = redis.call('GETRANGE', key, 0, 119)
    reply[#reply + 1] = redis.call('STRLEN', key)
  end
end
return reply
