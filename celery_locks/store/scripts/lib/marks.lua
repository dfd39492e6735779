-- Shared by acquire and release: what a release leaves behind to record that an attempt ended or work
-- is completed.
--
--   e:<job>    the attempt of a message that ended, plus 0.5 if it leaves no result;
--              '?' while another message is about to replace it
--              '!<ms>' until it is committed (commit_message.lua), which it waits for until that time
--              '<<fence>' of its reservation, which it has lost (leave_message.lua)
--   o:<name>   the work of the lock is completed (`once`)
--   j:<name>   the result of the last run of the lock, for those that join it; its fence is in the place of
--              the token
--   c:<key>    the value that a claim has bound
--   completed  zset  name -> expiry ms: an index of o:, for the list
--
-- The value of o:, j: and c: is one letter, the token of the writer, a space and a text:
--   r  the result    n  completed without a result    f  failed, the error
--   b  started, "<job> <attempt>" (only with `never`)
-- `reuse` is that of core/idempotency.py, or failed_later: failed work runs again when its mark has expired.

local function is_completed(mark)
  local kind = mark:sub(1, 1)
  return kind == 'r' or kind == 'n'
end

-- A mark is never lowered: an attempt may be slow to release the lock that a later one took over, and that
-- one may have ended meanwhile.
local function leave_ended_mark(mark, value, ms)
  local before = redis.call('SET', mark, value, 'PX', ms, 'GET')
  if before and (tonumber(before) or 0) > tonumber(value) then redis.call('SET', mark, before, 'PX', ms) end
end

-- With the value '', delete the mark if this token has left it at its start, and only then.
local function leave_mark(mark, value, ms, token)
  local is_listed = mark:sub(name_start - 2, name_start - 1) == 'o:'
  if value == '' then
    local current = redis.call('GET', mark)
    if not current or current:sub(1, #token + 1) ~= 'b' .. token then return end
    redis.call('DEL', mark)
    if is_listed then redis.call('ZREM', completed, name_of(mark)) end
    return
  end
  if is_listed and value:sub(1, 1) == 'f' and is_completed(redis.call('GET', mark) or '') then
    return -- this run lost its lock, and another one has completed the work
  end
  if mark:sub(name_start - 2, name_start - 1) == 'e:' then return leave_ended_mark(mark, value, ms) end
  redis.call('SET', mark, value, 'PX', ms)
  if is_listed then redis.call('ZADD', completed, now() + ms, name_of(mark)) end
end

-- Return true if the mark forbids this run. A start by this same call does not (its reply was lost),
-- nor does a start by an earlier attempt of the same job: a retry continues that work.
local function forbids_run(mark, reuse, token, job, attempt)
  if is_completed(mark) then return true end
  if mark:sub(1, 1) == 'f' then return reuse ~= 'failed_only' end
  if reuse ~= 'never' then return false end
  local mark_token, mark_job, mark_attempt = mark:match('^b(%S+) (%S+) (%d+)')
  local is_retry = mark_job ~= '-' and mark_job == job and tonumber(mark_attempt) < attempt
  return mark_token ~= token and not is_retry
end
