-- Part of acquire: replace the reservation of a queued message that has not started (attempt 0).
-- ARGV[9] the token of that reservation, or ''

-- For this long the replaced message waits to learn whether the new message was sent.
local REPLACING_MS = 10000

-- Returns the earlier reply if this is a repeated call. The reservation is gone by then.
local function repeated_replacement()
  return ARGV[9] ~= '' and saved_reply(token)
end

-- Returns the reply, or nil if there is nothing to replace.
local function replace_reservation()
  if ARGV[9] == '' or not redis.call('ZSCORE', held, ARGV[9]) then return end
  local since, replaced_job, tries = record_of(ARGV[9]):match('^%d+ (%d+) %d+ %d+ (%S+) (%d+)')
  if tries ~= '0' then return end
  remove_holder(ARGV[9])
  -- Until the new message is sent the old one waits; if the new one is never sent, the old one runs.
  redis.call('SET', root .. 'd:' .. replaced_job, '?', 'PX', REPLACING_MS)
  return save_reply(token, {'replaced', grant_slot(tonumber(since))})
end
