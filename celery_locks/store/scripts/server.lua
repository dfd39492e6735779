-- server: the INFO of the server of this shard.
-- returns the sections server, memory, persistence and replication; '' for one that it refuses

local sections = {}
for _, section in ipairs({'server', 'memory', 'persistence', 'replication'}) do
  local text = redis.pcall('INFO', section)
  sections[#sections + 1] = type(text) == 'string' and text or ''
end
return table.concat(sections, '\r\n')
