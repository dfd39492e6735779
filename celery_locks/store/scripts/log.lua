-- The log of operators' acts, for the verbs that write it.
-- record_act('what', name, by, why, {now, [token, expiry, record]...}): one entry, holders as in the
-- reply, as many as anybody reads (a semaphore may have thousands).

local function record_act(act, name, by, why, reply)
  local entry = {'act', act, 'name', name, 'by', by, 'why', why}
  for i = 2, math.min(#reply, 1 + 16 * 3) do
    entry[#entry + 1] = 'from'
    entry[#entry + 1] = reply[i]
  end
  -- A write that needs no memory: after it the script may go on under OOM.
  redis.call('DEL', root .. 'none')
  redis.call('XADD', root .. 'log', 'MAXLEN', '~', 1000, '*', unpack(entry))
end
