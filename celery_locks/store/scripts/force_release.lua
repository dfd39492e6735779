-- force_release: the operator's verb; takes the lock from one holder, or from all of them.
-- ARGV 1 name  2 token, or '' for every holder  3 by whom  4 why
-- returns {now, [token, expiry, record]...}: those it was taken from; their next renewal says lost
--
-- What was done stands in the log of the shard (common.lua) with the act itself: no act without it.

local name = ARGV[1]
local held = root .. 'h:' .. name
local reply, gone, taken_from = {now}, {}, {}
local holders = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if ARGV[2] == '' or ARGV[2] == holders[i] then
    gone[#gone + 1] = holders[i]
    if tonumber(holders[i + 1]) > now then
      local record = redis.call('HGET', records, holders[i]) or ''
      for _, part in ipairs({holders[i], holders[i + 1], record}) do
        reply[#reply + 1] = part
        -- As many as anybody reads; a semaphore may have thousands.
        if #taken_from < 16 * 6 then
          taken_from[#taken_from + 1] = 'from'
          taken_from[#taken_from + 1] = part
        end
      end
    end
  end
end
if #reply > 1 then
  -- A write that needs no memory: after it the script may go on under OOM.
  redis.call('DEL', root .. 'none')
  redis.call(
    'XADD', root .. 'log', 'MAXLEN', '~', 1000, '*',
    'act', 'force_release', 'name', name, 'by', ARGV[3], 'why', ARGV[4], unpack(taken_from)
  )
end
for _, token in ipairs(gone) do
  redis.call('ZREM', held, token)
  redis.call('HDEL', records, token)
end
pass_on(name)
return reply
