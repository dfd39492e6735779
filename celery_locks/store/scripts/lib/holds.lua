-- Whether a token holds the lock.

--include clock

local function holds(token)
  local expiry = redis.call('ZSCORE', held, token)
  return expiry and tonumber(expiry) > now()
end
