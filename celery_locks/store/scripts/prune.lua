-- prune: one short step of deleting entries that nobody needs any more. May be repeated.
-- ARGV 1 where: 'records', 'index', 'stops' or 'done'  2 cursor, '0' to start  3 about how many
--      4 '1' to delete them, '0' only to count
-- returns {next cursor ('0' at the end), how many}
--
-- Prune the records before the index: holders and waiters keep a name alive. A lapsed entry stays for
-- FORGET_MS: its holder may revive it.

--include common
--include handover

local cursor, size, deletes = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local oldest = now() - FORGET_MS

-- A record whose holder or waiter is gone, or lapsed long ago.
local function prune_record(token, record)
  local fence, since, length, rest =
    record:match('^(%d+) (%d+) %S+ %S+ %S+ %S+ %S+ (%d+) (.*)$')
  if not fence then return false end
  local name, is_waiter = rest:sub(1, length), fence == '0'
  local key = root .. (is_waiter and 'q:' or 'h:') .. name
  local score = redis.pcall('ZSCORE', key, token)
  if type(score) == 'table' or score and tonumber(is_waiter and since or score) > oldest then return false end
  if not deletes then return true end
  -- A slot that came free in this step may have been granted to it since the page was read.
  if redis.call('HGET', records, token) ~= record then return false end
  noted = 0
  if score and not is_waiter then note_past('lapsed', name, token, score, LAPSED) end
  if score then redis.call('ZREM', key, token) end
  redis.call('HDEL', records, token)
  if score then pass_on(name) end
  return true
end

-- A name without holders and waiters, or whose last one lapsed long ago.
local function prune_name(name, expiry)
  local keys = {root .. 'h:' .. name, root .. 'q:' .. name}
  if tonumber(expiry) > oldest and redis.call('EXISTS', unpack(keys)) > 0 then return false end
  if not deletes then return true end
  for _, key in ipairs(keys) do
    if redis.call('TYPE', key).ok == 'zset' then redis.call('UNLINK', key) end
  end
  redis.call('ZREM', index, name)
  return true
end

local function prune_stop(token)
  if redis.call('HEXISTS', records, token) == 1 then return false end
  if deletes then redis.call('HDEL', root .. 'stops', token) end
  return true
end

local function prune_done(name, expiry)
  if tonumber(expiry) > now() then return false end
  if deletes then redis.call('ZREM', root .. 'done', name) end
  return true
end

local steps = {
  records = {'HSCAN', prune_record}, index = {'ZSCAN', prune_name},
  stops = {'HSCAN', prune_stop}, done = {'ZSCAN', prune_done},
}
local scan, prune = unpack(steps[ARGV[1]])
local page, pruned = redis.call(scan, root .. ARGV[1], cursor, 'COUNT', size), 0
for i = 1, #page[2], 2 do
  if prune(page[2][i], page[2][i + 1]) then pruned = pruned + 1 end
end
return {page[1], pruned}
