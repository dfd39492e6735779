-- trim: one short step of clearing up what nobody needs any more. May be repeated.
-- ARGV 1 of which: 'records', 'index', 'stops' or 'done'  2 cursor, '0' to begin  3 about how many
--      4 '1' to remove them, '0' only to count
-- returns {next cursor ('0' at the end), how many}
--
-- Records before index: it is the holders and waiters that keep a name. What has lapsed stays for
-- FORGET_MS: its holder may revive it.

--include common
--include ends

local cursor, size, removes = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local old = now() - FORGET_MS

-- A record whose holder or waiter is not there, or has been lapsed for long.
local function trim_record(token, record)
  local fence, since, length, rest =
    record:match('^(%d+) (%d+) %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
  if not fence then return false end
  local name, waits = rest:sub(1, length), fence == '0'
  local key = root .. (waits and 'q:' or 'h:') .. name
  local score = redis.pcall('ZSCORE', key, token)
  if type(score) == 'table' or score and tonumber(waits and since or score) > old then return false end
  if not removes then return true end
  -- A slot that came free in this very step may have been handed to it since its page was read.
  if redis.call('HGET', records, token) ~= record then return false end
  noted = 0
  if score and not waits then note_past('lapsed', name, token, score, LAPSED) end
  if score then redis.call('ZREM', key, token) end
  redis.call('HDEL', records, token)
  if score then pass_on(name) end
  return true
end

-- A name that nobody holds or waits for, or did so last long ago.
local function trim_name(name, expiry)
  local keys = {root .. 'h:' .. name, root .. 'q:' .. name}
  if tonumber(expiry) > old and redis.call('EXISTS', unpack(keys)) > 0 then return false end
  if not removes then return true end
  for _, key in ipairs(keys) do
    if redis.call('TYPE', key).ok == 'zset' then redis.call('UNLINK', key) end
  end
  redis.call('ZREM', index, name)
  return true
end

local function trim_stop(token)
  if redis.call('HEXISTS', records, token) == 1 then return false end
  if removes then redis.call('HDEL', root .. 'stops', token) end
  return true
end

local function trim_done(name, expiry)
  if tonumber(expiry) > now() then return false end
  if removes then redis.call('ZREM', root .. 'done', name) end
  return true
end

local steps = {
  records = {'HSCAN', trim_record}, index = {'ZSCAN', trim_name},
  stops = {'HSCAN', trim_stop}, done = {'ZSCAN', trim_done},
}
local scan, trim = unpack(steps[ARGV[1]])
local page, trimmed = redis.call(scan, root .. ARGV[1], cursor, 'COUNT', size), 0
for i = 1, #page[2], 2 do
  if trim(page[2][i], page[2][i + 1]) then trimmed = trimmed + 1 end
end
return {page[1], trimmed}
