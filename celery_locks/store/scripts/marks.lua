-- Shared by acquire and release: what is left behind when work ends.
--
--   d:<job>   the attempt of a message that ended, and a half if it leaves no result;
--             '?' while another message is about to replace it
--   o:<name>  the lock's work is done (`once`)       c:<key>  who has a claim, and on what
--   done      zset  name -> expiry ms: which o: there are, for the list; lapsed ones go by and by
--
-- o: and c: hold one letter, the token of who left it, a space and more:
--   r, a result   n, done without one   f, failed, why   b, begun, "<job> <attempt>" (`never` only)

-- '' as value takes back what this token has begun, and only that.
local function leave_mark(mark, value, ms, token)
  local key, name = root .. mark, mark:sub(1, 2) == 'o:' and mark:sub(3)
  if value == '' then
    local there = redis.call('GET', key)
    if not there or there:sub(1, #token + 1) ~= 'b' .. token then return end
    redis.call('DEL', key)
    if name then redis.call('ZREM', root .. 'done', name) end
    return
  end
  redis.call('SET', key, value, 'PX', ms)
  if not name then return end
  redis.call('ZADD', root .. 'done', now() + ms, name)
  local old = redis.call('ZRANGEBYSCORE', root .. 'done', '-inf', now(), 'LIMIT', 0, 2)
  if #old > 0 then redis.call('ZREM', root .. 'done', unpack(old)) end
end

-- Whether a mark stands against doing the work now. What this very call has begun does not (its
-- reply was lost), nor what an earlier attempt of the same job has: a retry goes on with it.
local function is_final(mark, reuse, token, job, attempt)
  local kind = mark:sub(1, 1)
  if kind == 'r' or kind == 'n' then return true end
  if reuse ~= 'never' then return false end
  if kind ~= 'b' then return true end
  local whose, theirs, tries = mark:match('^b(%S+) (%S+) (%d+)')
  return whose ~= token and not (theirs ~= '-' and theirs == job and tonumber(tries) < attempt)
end
