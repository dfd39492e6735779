-- Part of acquire: the side effects of a grant. Nothing without options.

-- The attempt number for the mark of a superseded message: above every real one.
-- SUPERSEDED in commands/replies.py is the same number.
local SUPERSEDED = 1000000000000000

local own_order -- of a message that has lost its reservation: the fence that this had (reject.lua)

local function on_grant()
  if options.rates then count_start(options.rates, rate_member) end
  if options.once and options.once[2] == 'never' then
    -- Mark the start too: a run whose process is killed must not be repeated.
    leave_mark(options.once[1], 'b' .. token .. ' ' .. job .. ' ' .. attempt, options.once[3])
  end
  if options.release then
    -- The reservation of the message that starts.
    local reserved_held, reserved_queue, arguments, reserved = unpack(options.release)
    local order = own_order or (redis.call('HGET', records, reserved) or ''):match('^%d+')
    if options.newest and order then
      redis.call('SET', options.newest[1], order, 'PX', options.newest[2], 'XX')
    end
    if redis.call('ZREM', reserved_held, reserved) == 1 then
      redis.call('DEL', arguments)
      pass_on(reserved_held, reserved_queue)
    end
    redis.call('HDEL', records, reserved)
  end
  if options.forget then redis.call('HDEL', options.forget[1], options.forget[2]) end
  if options.supersede then
    redis.call('SET', options.supersede[1], string.format('%.0f', SUPERSEDED), 'PX', options.supersede[2])
  end
end
