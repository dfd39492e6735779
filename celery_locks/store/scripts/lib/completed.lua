-- Part of acquire: reject an attempt that has ended elsewhere, and work that is completed (marks.lua).
-- ARGV[6] '1' to check the attempt   ARGV[12] mark, or ''   ARGV[13] reuse: with 'failed_only' failed
-- work may run again, with 'never' it may not

-- Returns the reply, or nil if neither applies.
local function completed_reply()
  if ARGV[6] == '1' then
    local ended = redis.call('GET', root .. 'd:' .. job)
    if ended and (ended == '?' or tonumber(ended) >= attempt) then return {'done', ended} end
  end
  if ARGV[12] ~= '' then
    local mark = redis.call('GET', root .. ARGV[12])
    if mark and forbids_run(mark, ARGV[13], token, job, attempt) then return {'once', mark} end
  end
end
