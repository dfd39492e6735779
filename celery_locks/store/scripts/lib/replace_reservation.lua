-- Part of acquire: replace the reservation of a queued message that has not started (attempt 0).
-- options.replace: the key of its ended mark, the key of the saved reply, its token

-- For this long the replaced message waits to learn whether the new message was sent.
local REPLACING_MS = 10000

-- Returns the reply, or nil if there is nothing to replace.
local function replace_reservation()
  local ended, saved, reserved = unpack(options.replace)
  if not redis.call('ZSCORE', held, reserved) then return end
  local since, replaced_job, tries = record_of(reserved):match('^%d+ (%d+) %d+ %d+ (%S+) (%d+)')
  if tries ~= '0' or replaced_job ~= name_of(ended) then return end
  remove_holder(reserved)
  -- Until the new message is sent the old one waits; if the new one is never sent, the old one runs.
  redis.call('SET', ended, '?', 'PX', REPLACING_MS)
  return save_reply(saved, {'replaced', grant_slot(nil, tonumber(since))})
end
