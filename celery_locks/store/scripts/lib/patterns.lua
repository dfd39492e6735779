-- Patterns of lock names that operators have paused.
--   patterns  hash  glob -> "<until ms, or 0> <since ms> 0 <about>", a marker without its first word
--
-- In a glob * is any text and ? is one character; every other character, also [ and \, is itself.
-- While there are patterns, the value of the fence ends with ' p', which next_number finds: a grant
-- costs no further command without patterns, and is checked against them with patterns.
--
-- A caller that joins the queue leaves the marker '~glob' (overrides.lua), so that nobody passes it when
-- the pause ends. Names in use get it from apply_patterns.lua. So a lock with waiters has its marker.

-- Without *, which would make a match take very long.
local function lua_pattern(part)
  return (part:gsub('[^%w]', function(char)
    if char == '?' then return '[^\128-\191][\128-\191]*' end -- one character in UTF-8
    return char == '\0' and '%z' or '%' .. char
  end))
end

local function glob_matches(glob, name)
  local parts = {}
  for part in (glob .. '*'):gmatch('([^*]*)%*') do parts[#parts + 1] = lua_pattern(part) end
  if #parts == 1 then return name:find('^' .. parts[1] .. '$') ~= nil end
  local _, at = name:find('^' .. parts[1])
  for i = 2, #parts - 1 do
    if not at then return false end
    _, at = name:find(parts[i], at + 1)
  end
  return at ~= nil and name:find(parts[#parts] .. '$', at + 1) ~= nil
end

-- Returns the markers of the patterns that match a name, and the globs whose time is over.
local function match_patterns(name)
  local markers, over, all = {}, {}, redis.call('HGETALL', patterns)
  for i = 1, #all, 2 do
    if is_over(all[i + 1]) then
      over[#over + 1] = all[i]
    elseif glob_matches(all[i], name) then
      markers[#markers + 1] = '~glob ' .. all[i + 1]
    end
  end
  return markers, over
end
