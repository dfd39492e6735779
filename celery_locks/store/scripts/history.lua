-- history: a page of operators' actions, or of past holds, the latest first.
-- KEYS 1 the stream, log or past
-- ARGV 1 where to start: '+', or '(' and the last id that was read  2 how many
-- returns {1 if there may be more, else 0, [id, {field, value, ...}]...}; an id starts with its time in ms
--
-- An older version stored texts of any size. Texts are cut, large records of holders are left out, and
-- a page ends early, so that the size and the time of a reply are bounded.

local MAX_TEXT, MAX_RECORD, MAX_READ, CHUNK = 2000, 10000, 1000000, 5
local size, from, read = tonumber(ARGV[2]), ARGV[1], 0

-- Returns the size of the fields before they were cut.
local function cut(fields)
  local bytes = 0
  for i = 2, #fields, 2 do
    local value, is_record = fields[i], fields[i - 1] == 'from'
    bytes = bytes + #value
    if is_record and #value > MAX_RECORD then fields[i] = '' end
    if not is_record then fields[i] = value:sub(1, MAX_TEXT) end
  end
  return bytes
end

local reply = {1}
while #reply <= size and read < MAX_READ do
  local count = math.min(CHUNK, size + 1 - #reply)
  local entries = redis.call('XREVRANGE', KEYS[1], from, '-', 'COUNT', count)
  for _, entry in ipairs(entries) do
    read = read + cut(entry[2])
    reply[#reply + 1] = entry
    from = '(' .. entry[1]
  end
  if #entries < count then
    reply[1] = 0
    break
  end
end
return reply
