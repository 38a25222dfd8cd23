"""Recorded status pages of real servers."""

NGINX = "Active connections: 15001 \nserver accepts handled requests\n 15012 15011 31893 \nReading: 0 Writing: 1 Waiting: 15000 \n"
TENGINE = "Active connections: 2 \nserver accepts handled requests request_time\n 10 9 20 314 \nReading: 0 Writing: 1 Waiting: 1 \n"

# Apache 2.4.71 with three idle clients and the poller.
_APACHE = """\
127.0.0.1
ServerVersion: Apache/2.4.71 (Debian)
ServerMPM: {mpm}
Server Built: 2026-11-12T08:58:41
CurrentTime: Saturday, 21-Nov-2026 16:01:04 UTC
RestartTime: Saturday, 21-Nov-2026 16:01:00 UTC
ParentServerConfigGeneration: 1
ParentServerMPMGeneration: 0
ServerUptimeSeconds: 4
ServerUptime: 4 seconds
Load1: 0.67
Load5: 0.81
Load15: 0.77
{rest}
"""
PREFORK = _APACHE.format(mpm="prefork", rest="BusyWorkers: 4\nGracefulWorkers: 0\nIdleWorkers: 9\nScoreboard: ___KK_KW_____")
EVENT = _APACHE.format(
    mpm="event",
    rest="BusyWorkers: 1\nGracefulWorkers: 0\nIdleWorkers: 255\nProcesses: 1\nStopping: 0\nConnsTotal: 4\nConnsAsyncWaitIO: 0\n"
    "ConnsAsyncWriting: 0\nConnsAsyncKeepAlive: 4\nConnsAsyncClosing: 0\nScoreboard: " + "_" * 10 + "W" + "_" * 245,
)
# HAProxy 2.6.12 with the same; without the columns after conn_tot.
CSV = (
    "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,wretr,wredis,status,weight,act,bck,chkfail,"
    "chkdown,lastchg,downtime,qlimit,pid,iid,sid,throttle,lbtot,tracked,type,rate,rate_lim,rate_max,check_status,check_code,"
    "check_duration,hrsp_1xx,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_5xx,hrsp_other,hanafail,req_rate,req_rate_max,req_tot,cli_abrt,srv_abrt,"
    "comp_in,comp_out,comp_byp,comp_rsp,lastsess,last_chk,last_agt,qtime,ctime,rtime,ttime,agent_status,agent_code,agent_duration,"
    "check_desc,agent_desc,check_rise,check_fall,check_health,agent_rise,agent_fall,agent_health,addr,cookie,mode,algo,conn_rate,"
    "conn_rate_max,conn_tot,\n"
)
LAB = "lab,FRONTEND,,,3,3,58,3,234,426,0,0,0,,,,,OPEN,,,,,,,,,1,1,0,,,,0,0,0,3,,,,0,6,0,0,0,0,,0,6,6,,,0,0,0,0" + "," * 21 + "http,,0,3,5,\n"
STATS = "stats,FRONTEND,,,1,1,58,2,230,9465,0,0,0,,,,,OPEN,,,,,,,,,1,2,0,,,,0,0,0,2,,,,0,5,0,0,0,0,,1,2,6,,,0,0,0,0" + "," * 21 + "http,,0,2,2,\n"
HAPROXY = CSV + LAB + STATS
