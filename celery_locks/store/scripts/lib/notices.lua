-- What holders are told when they renew.
--   notices  hash  token -> "<until ms> <text>": '' asks the holder to stop (stop.lua),
--            "<length of by> <by><why>" says that the lock was force-released (force_release.lua)
-- A notice is read until its time; the hash expires with its last notice.

-- Returns the text of a notice that is valid, or nil.
local function notice_for(token)
  -- pcall: a value of another type under our key is no notice.
  local notice = redis.pcall('HGET', notices, token)
  local until_ms, text = (type(notice) == 'string' and notice or ''):match('^(%d+) (.*)$')
  return until_ms and tonumber(until_ms) > now() and text or nil
end

-- Leave a notice, and delete a few that nobody needs: only this script adds them, so they cannot pile up.
local function leave_notice(token, text, ms)
  for _, other in ipairs(redis.call('HRANDFIELD', notices, 4) or {}) do
    local other_text = notice_for(other)
    local is_over = not other_text or other_text == '' and redis.call('HEXISTS', records, other) == 0
    if is_over then redis.call('HDEL', notices, other) end
  end
  redis.call('HSET', notices, token, string.format('%.0f ', now() + ms) .. text)
  if redis.call('PTTL', notices) < ms then redis.call('PEXPIRE', notices, ms) end
end
