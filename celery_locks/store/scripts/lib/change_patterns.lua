-- Change the patterns, and what next_number finds in the fence.

local function flag_fence()
  local number = (redis.call('GET', fence) or '0'):match('^%d+')
  redis.call('SET', fence, number .. (redis.call('EXISTS', patterns) == 1 and ' p' or ''))
end

local function drop_patterns(globs)
  for _, glob in ipairs(globs) do redis.call('HDEL', patterns, glob) end
  flag_fence()
end

-- Make the markers of a lock agree with the patterns that match it now: remove those of patterns that
-- have ended and, if `adds`, add the others. Returns true if it removed one.
local function apply_patterns(held, queue, markers, matching, adds)
  local wanted, removed = {}, false
  for _, marker in ipairs(matching) do wanted[marker] = true end
  for i = #markers, 1, -1 do
    if markers[i]:find('^~glob') and not wanted[markers[i]] then
      redis.call('ZREM', held, table.remove(markers, i))
      removed = true
    elseif wanted[markers[i]] then
      wanted[markers[i]] = nil
    end
  end
  for marker in pairs(adds and wanted or {}) do add_marker(held, marker) end
  if removed then restore_index(held, queue) end
  return removed
end
