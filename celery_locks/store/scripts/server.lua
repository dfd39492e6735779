-- server: what the server of this shard says of itself.
-- returns the texts of INFO server, memory, persistence and replication; '' where it does not say

local said = {}
for _, part in ipairs({'server', 'memory', 'persistence', 'replication'}) do
  local answer = redis.pcall('INFO', part)
  said[#said + 1] = type(answer) == 'string' and answer or ''
end
return table.concat(said, '\r\n')
