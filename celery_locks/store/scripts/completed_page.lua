-- completed_page: some marks of completed work (marks.lua).
-- KEYS o:<name> of each
-- returns for each mark {ms left, its first 1000 bytes, its size}, or {} if it has expired

local reply = {}
for i, mark in ipairs(KEYS) do
  local left = redis.call('PTTL', mark)
  reply[i] = left >= 0 and {left, redis.call('GETRANGE', mark, 0, 999), redis.call('STRLEN', mark)} or {}
end
return reply
