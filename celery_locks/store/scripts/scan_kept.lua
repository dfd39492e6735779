-- scan_kept: read a page of the messages that are kept (keep_message.lua) and were published some time ago. Delete
-- those that have no reservation any more. A message that is parked again is not with the broker (fence 0).
-- ARGV 1 cursor, '0' at the start  2 size of the page  3 ms since the publish
-- returns {cursor of the next page or '0', [token, ms, record]...}

--keys records kept
--include clock

local cursor, entries = unpack(redis.call('HSCAN', kept, ARGV[1], 'COUNT', ARGV[2]))
local reply = {cursor}
for i = 1, #entries, 2 do
  local token, published = entries[i], entries[i + 1]:match('^%d+')
  local record = redis.call('HGET', records, token)
  if not record then
    redis.call('HDEL', kept, token)
  elseif not record:find('^0 ') and tonumber(published) <= now() - ARGV[3] then
    for _, value in ipairs({token, published, record}) do reply[#reply + 1] = value end
  end
end
return reply
