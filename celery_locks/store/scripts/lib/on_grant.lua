-- Part of acquire: the side effects of a grant. Nothing without options.

-- The attempt number for the mark of a superseded message: above every real one.
-- SUPERSEDED in commands/requests.py is the same number.
local SUPERSEDED = 1000000000000000

local function on_grant()
  if options.once and options.once[2] == 'never' then
    -- Mark the start too: a run whose process is killed must not be repeated.
    leave_mark(options.once[1], 'b' .. token .. ' ' .. job .. ' ' .. attempt, options.once[3])
  end
  if options.release then
    -- The reservation of the message that starts.
    local reserved_held, reserved_queue, reserved = unpack(options.release)
    if redis.call('ZREM', reserved_held, reserved) == 1 then pass_on(reserved_held, reserved_queue) end
    redis.call('HDEL', records, reserved)
  end
  if options.supersede then
    redis.call('SET', options.supersede[1], string.format('%.0f', SUPERSEDED), 'PX', options.supersede[2])
  end
end
