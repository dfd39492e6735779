-- Part of acquire: reject an attempt that has ended elsewhere, and work that is completed (marks.lua).

-- Returns the reply, or nil if neither applies.
local function rejection()
  local ended = options.ended and redis.call('GET', options.ended[1])
  local wait_until = (ended or ''):match('^!(%d+)$')
  if wait_until then
    -- The message is not committed (commit_message.lua), and from some time on it never will be.
    if tonumber(wait_until) > now() then return {'ended', '?'} end
    ended = string.format('%.0f', SUPERSEDED)
    redis.call('SET', options.ended[1], ended, 'KEEPTTL')
  end
  own_order = (ended or ''):match('^<(%d*)$')
  if own_order then
    local newest = options.newest and redis.call('GET', options.newest[1]) or own_order
    if (tonumber(newest) or 0) <= (tonumber(own_order) or 0) then
      ended = nil
    else
      ended = string.format('%.0f', SUPERSEDED)
    end
  end
  if ended and (ended == '?' or tonumber(ended) >= attempt) then return {'ended', ended} end
  local joined = options.join and redis.call('GET', options.join[1])
  if joined and tonumber(joined:match('^%a(%d+)') or 0) >= tonumber(options.join[2]) then
    return {'completed', joined}
  end
  local mark = options.once and redis.call('GET', options.once[1])
  if mark and forbids_run(mark, options.once[2], token, job, attempt) then return {'completed', mark} end
end
