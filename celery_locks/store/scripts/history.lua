-- history: a page of what operators did, or of past holds, the latest first.
-- ARGV 1 where to begin: '+', or '(' and the last id that was read  2 how many  3 'log' or 'past'
-- returns {1 if there may be more, else 0, [id, {field, value, ...}]...}; an id begins with its ms
--
-- An older version let in texts of any size. Texts are cut, large records of holders left out, and
-- a page ends early, so that neither the reply nor the time that it takes grows with them.

--include common

local MOST_TEXT, MOST_RECORD, MOST_READ, AT_ONCE = 2000, 10000, 1000000, 5
local size, from, read = tonumber(ARGV[2]), ARGV[1], 0

-- Returns the size of what was read.
local function cut(fields)
  local bytes = 0
  for i = 2, #fields, 2 do
    local value, is_record = fields[i], fields[i - 1] == 'from'
    bytes = bytes + #value
    if is_record and #value > MOST_RECORD then fields[i] = '' end
    if not is_record then fields[i] = value:sub(1, MOST_TEXT) end
  end
  return bytes
end

local reply = {1}
while #reply <= size and read < MOST_READ do
  local count = math.min(AT_ONCE, size + 1 - #reply)
  local entries = redis.call('XREVRANGE', root .. ARGV[3], from, '-', 'COUNT', count)
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
