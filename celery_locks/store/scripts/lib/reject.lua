-- Part of acquire: reject an attempt that has ended elsewhere, and work that is completed (marks.lua).

-- Returns the reply, or nil if neither applies.
local function rejection()
  local ended = options.ended and redis.call('GET', options.ended[1])
  if ended and (ended == '?' or tonumber(ended) >= attempt) then return {'ended', ended} end
  local mark = options.once and redis.call('GET', options.once[1])
  if mark and forbids_run(mark, options.once[2], token, job, attempt) then return {'completed', mark} end
end
