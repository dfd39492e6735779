-- Shared by the scripts of operators: the log of their actions.
-- log_action(action, name, by, why, {now, [token, expiry, record]...}, more) adds one entry, with at most
-- 16 of the holders in the reply (a semaphore may have thousands) and the fields in `more`, if given.

local function log_action(action, name, by, why, reply, more)
  local entry = {'act', action, 'name', name, 'by', by, 'why', why}
  for i = 2, math.min(#reply, 1 + 16 * 3) do
    entry[#entry + 1] = 'from'
    entry[#entry + 1] = reply[i]
  end
  for _, text in ipairs(more or {}) do entry[#entry + 1] = text end
  -- Needs no memory: after a first write a script may continue under OOM.
  redis.call('DEL', saved)
  redis.call('XADD', log, 'MAXLEN', '~', 1000, '*', unpack(entry))
end
