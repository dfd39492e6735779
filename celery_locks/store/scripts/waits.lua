-- waits: the locks that some waiters wait for, and their holders. Read-only.
-- KEYS after those below: h:<name>, q:<name> of each waiter
-- ARGV token of each waiter
-- returns for each waiter {ticket, number of holders, [token, expiry, record]...} with 64 holders at
--         most, or {} if it does not count
--
-- A waiter does not count that has left the queue, or whose process is gone (nobody listens on its
-- channel), or that waits for a lock with a lapsed holder (it is about to get that slot), or for a lock
-- that an operator paused or limited (it depends on the operator). One that is behind a waiter for several
-- locks depends on that waiter only, which is then listed in place of the holders.

--keys records
--include clock
--include overrides

local function is_alive(token)
  local record = redis.call('HGET', records, token) or ''
  local alive_until, channel = record:match('^0 (%d+) %S+ %S+ %S+ %S+ %+?(%S+) ')
  if not alive_until or tonumber(alive_until) <= now() then return false end
  -- pcall: without the permission for PUBSUB every waiter counts as alive.
  local listeners = channel ~= '-' and redis.pcall('PUBSUB', 'NUMSUB', channel)
  return type(listeners) ~= 'table' or listeners[2] ~= 0
end

local function describe_wait(token, held, queue)
  local ticket = is_alive(token) and redis.call('ZSCORE', queue, token)
  if not ticket then return {} end
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  local first_record = redis.call('HGET', records, first[1]) or ''
  if first[1] ~= token and first_record:find('^0 %d+ %S+ %S+ %S+ %S+ %+') then
    return {ticket, 1, first[1], first[2], first_record}
  end
  local holders = redis.call('ZRANGEBYSCORE', held, '-inf', '(+inf', 'WITHSCORES', 'LIMIT', 0, 64)
  if not holders[1] or tonumber(holders[2]) <= now() then return {} end
  if read_markers(held)[1] then return {} end
  local entry = {ticket, count_holders(held)}
  for i = 1, #holders, 2 do
    entry[#entry + 1] = holders[i]
    entry[#entry + 1] = holders[i + 1]
    entry[#entry + 1] = redis.call('HGET', records, holders[i]) or ''
  end
  return entry
end

local reply = {}
for i, token in ipairs(ARGV) do reply[i] = describe_wait(token, KEYS[2 * i], KEYS[2 * i + 1]) end
return reply
